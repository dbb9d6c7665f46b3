"""The JSON Schemas of everything that servesim writes: tables of fields with what each means, and what is made of them.

Knows no verb and no class that writes a document; tests hold the schemas against what every verb really writes.
"""

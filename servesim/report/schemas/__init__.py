"""The JSON Schemas of everything that servesim writes, made of the dataclasses that hold it and of tables for the rest.

Knows no verb; tests hold the schemas against what every verb really writes.
"""

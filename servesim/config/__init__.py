"""Every option declared once, the specs made of them, and the server that is built from one."""

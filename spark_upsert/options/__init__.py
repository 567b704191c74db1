"""Options of reads and writes, each declared once at its field (`declare`).

docs/options.md is generated from the declarations.
"""

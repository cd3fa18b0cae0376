"""Budgets that are kept in a file: models, targets and sizes, checked by every build.

config     `[tool.qnnmem]` of pyproject.toml, or qnnmem.toml, as frozen entries
keys       what each key of an entry may hold
pools      names of pools on LPAI and on HTP
lpai, htp  an entry and a file checked: the same plan and the same fit as everywhere
run        the right one of both, and what cannot be answered
baseline   what was accepted: written, read, compared with
value      what a check holds
"""

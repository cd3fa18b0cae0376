"""Budgets that a project keeps, and two results compared: does it fit, is it worse.

config, keys, pools      `[tool.qnnmem]` of pyproject.toml, or qnnmem.toml, as frozen entries
task                     one file of an entry
check_lpai, check_htp    a file checked: the same plan and the same fit as everywhere
check_files              all files, and those that cannot be checked
baseline                 accepted numbers: written, read, compared with
subject, subjects         what of a result is compared, read from the JSON of any verb
comparison, tolerance    subjects of both sides paired and compared
"""

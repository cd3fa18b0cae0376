"""Budgets of a project, and the comparison of two results.

config, keys             `[tool.qnnmem]` of pyproject.toml, or qnnmem.toml, as frozen entries
budget_check             every file checked: the same plan and the same fit as everywhere
checked                  the models of a run, and the accepted numbers: written, read, compared with
subjects                 what of a result is compared, read from the JSON of any verb
comparison               subjects of both sides paired and compared
"""

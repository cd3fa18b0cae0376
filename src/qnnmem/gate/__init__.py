"""Budgets of a project, and the comparison of two results.

config, keys             `[tool.qnnmem]` of pyproject.toml, or qnnmem.toml, as frozen entries
budget_check             checks of all files, with the plan and the fit of the verbs
checked                  the checked models, and the accepted sizes: written, read, compared
subjects                 the comparable parts of a result, read from the JSON of any verb
comparison               pairs and compares the subjects of two results
"""

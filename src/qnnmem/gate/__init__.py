"""Budgets of a project, and the comparison of two results.

config, keys             read `[tool.qnnmem]` of pyproject.toml, or qnnmem.toml, into entries
budget_check             checks all files with the code of the verbs `plan` and `fit`
checked                  the checked models; reads, writes and compares the accepted sizes
subjects                 extracts the comparable parts of a result from the JSON of any verb
comparison               pairs and compares the subjects of two results
"""

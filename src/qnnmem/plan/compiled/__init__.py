"""The compiled half of the planner; importing a module of this folder imports numba."""

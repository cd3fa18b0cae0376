"""Remedies that change the graph or its order: fusion, recomputing, operators, shapes."""

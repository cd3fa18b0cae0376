"""Remedies that change the graph, or only its order: fusion, recomputing, operators, shapes."""

"""Result types: each defines the value that verbs return, its JSON and its schema.

result     the base of all, numbers that JSON carries exactly, numbers with an origin
schema     JSON text, and the schema that a type makes
read       a result from JSON text of any source, by the schema it names
plan ...   the results themselves
"""

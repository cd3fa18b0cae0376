"""Result types. Each defines the value that a command returns, its JSON and its schema.

result     base types of all results, numbers that JSON represents exactly, numbers with an origin
schema     writes results as JSON text, and derives a JSON schema from a type
read       reads a result from untrusted JSON, with the type of the schema that the JSON names
plan ...   the result types themselves
"""

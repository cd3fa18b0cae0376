"""Results as one HTML file, which contains its styles, drawing code and data and fetches nothing.

document   the file: head, sections in order, security policy
markup     escaped text, tables, numbers
charts     bars and lines as SVG, readable without JavaScript
sections   a section for each kind of result, by its schema
plan ...   a module for each kind of result, rendered from JSON values
memory_map the figure of a memory map, drawn by map.js: each tensor is a box by time and address
"""

"""Results as one HTML file: styles, drawing code and data inside, nothing fetched.

document   the file: head, sections in order, what may run in it
markup     escaped text, tables, numbers
charts     bars and lines as SVG, readable without JavaScript
sections   a section for each kind of result, by its schema
plan ...   one kind each, from JSON values
memory_map the figure of a map, which map.js draws: address by time, every tensor a box
"""

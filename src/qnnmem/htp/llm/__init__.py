"""Language models on HTP: sizes by rule or from compiled layers, shards, process domains.

config          the decoder's sizes and the bits of each part: config.json, GGUF, tables
rule            bytes of weights, inputs, outputs and files, by arithmetic
rule_check      measured sizes of one and two layers from the real library
plan            a check of shards against the limits of a SoC, and the longest context
decoder_layers  a decoder of a few layers as an ONNX model
compare         a comparison of the files of a deployed model with the expected shards
"""

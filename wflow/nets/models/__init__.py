"""Networks, each in one file from input to output: `vit`, `gpt`, `text`, `set_transformer`.
They are built from `blocks` and `continuous` and import nothing of `training` or `data`. Start with
`vit`.
"""

"""Request traces: one line for each finished request in the format of NVIDIA Dynamo, and what is made of such files.

No text of a prompt or an answer and no argument of a tool call ever reaches a line.
"""

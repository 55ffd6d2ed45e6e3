"""The data of edge-tiny: synthetic function-calling conversations, their tokenizer and their rendering."""

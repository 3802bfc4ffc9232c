"""Experiments: studies and runs whose result is a file or a table, and the pictures drawn from them."""

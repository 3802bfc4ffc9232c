"""Golden models: cases, their folders in formats 2 and 3, and how they were made."""

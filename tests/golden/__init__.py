"""Golden models: cases, the folders that version 1 wrote of them, and how they were made."""

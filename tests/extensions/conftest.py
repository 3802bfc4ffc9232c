"""The modules of this folder register themselves when imported: only test_extensions.py may do that."""

collect_ignore_glob = ["toy_*.py"]

"""Paths: which trees may be used, and how to open what is in them so that nothing leads out."""

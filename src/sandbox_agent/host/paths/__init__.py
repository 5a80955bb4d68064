"""Open paths within the allowed trees so that nothing leads out of them."""

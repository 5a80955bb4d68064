"""Watch: changes in a directory, as the kernel tells them."""

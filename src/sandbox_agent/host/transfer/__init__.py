"""Transfer: files and trees on their way in and out, whole or not at all."""

"""Generate code and pages of this repository; no tool is part of the installed package."""

"""Set up, try and operate fleets for `sandbox-agent fleet …`."""

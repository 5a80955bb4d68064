"""Read tar archives and fill trees from them.

The package knows neither agents nor the host's file service.
"""

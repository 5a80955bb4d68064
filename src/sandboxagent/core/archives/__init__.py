"""Read tar archives and fill trees from them.

Knows neither agents nor the host's file service.
"""

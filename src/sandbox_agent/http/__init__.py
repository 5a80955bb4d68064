"""HTTP: routes, guards, streams, errors as problem documents. Thin; what happens is in the hub."""

"""Install agents from the ACP registry, archives and package indexes."""

"""What a person sees: pages, tables, figures."""

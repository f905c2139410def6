"""Reports: pages, tables, figures and the live dashboard."""

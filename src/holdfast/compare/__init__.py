"""Comparisons of models: recipes, criteria, reports and preferences."""

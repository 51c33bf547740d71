"""Comparisons of models on a fan-out: recipes, criteria, reports and preferences."""

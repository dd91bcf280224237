"""Shared by the tests: models, images, problems with known answers, small runs."""

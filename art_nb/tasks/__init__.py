"""The tasks that a model learns in this course: plain Python environments that know nothing about models."""

"""The source of tasks/code_review/problems.jsonl: `python -m benchmarks.code_review_bank`."""

"""Parts of all jobs: candidates, processes, timing, verification, goals and reports."""

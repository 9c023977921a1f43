"""What all jobs share: candidates, processes, timing, verification, goals and reports."""

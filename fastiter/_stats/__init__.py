"""Statistics: counters, bottleneck diagnosis, automatic settings, traces and progress bars."""

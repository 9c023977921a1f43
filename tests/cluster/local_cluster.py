"""A Ray cluster of this machine, in a process of its own: ``python local_cluster.py NODES``.

It prints the address when the nodes have joined, and then obeys lines on its standard input:
``add`` adds a node. It answers each with the processes of each node, by their names.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
STORE = 100 << 20


def main() -> None:
    from ray.cluster_utils import Cluster

    def add(**others):
        return cluster.add_node(
            num_cpus=1,
            object_store_memory=STORE,
            node_ip_address="127.0.0.1",
            include_dashboard=False,
            **others,
        )

    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    cluster = Cluster()
    add(resources={"head": 1})
    for _ in range(int(sys.argv[1]) - 1):
        add(resources={"other": 1})
    cluster.wait_for_nodes()
    out.write(cluster.address + "\n")
    for line in sys.stdin:
        if line.strip() == "add":
            add(resources={"other": 1})
        nodes = [
            {
                name: [info.process.pid for info in infos if info.process.poll() is None]
                for name, infos in node.all_processes.items()
            }
            for node in cluster.list_all_nodes()
        ]
        out.write(json.dumps(nodes) + "\n")
    cluster.shutdown()


if __name__ == "__main__":
    main()

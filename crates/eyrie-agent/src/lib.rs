//! a node: launching (PMI), watching, capturing, restoring.

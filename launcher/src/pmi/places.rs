//! Which ranks share a node: as PMI says it, `(vector,(FIRST NODE,NODES,RANKS OF EACH),...)`, which
//! is repeated until all ranks have a node.

use std::ops::Range;

/// The key under which ranks find it.
pub(super) const MAPPING: &str = "PMI_process_mapping";

/// The node of each rank.
pub(super) fn nodes(mapping: &str, size: u32) -> Result<Vec<u32>, String> {
    let wrong = || format!("{MAPPING} is {}", super::message::shown(mapping.as_bytes()));
    let blocks = blocks(mapping).ok_or_else(wrong)?;
    let mut nodes = Vec::new();
    while nodes.len() < size as usize {
        for (first, count, each) in &blocks {
            for node in 0..*count {
                let node = first.checked_add(node).ok_or_else(wrong)?;
                let left = size as usize - nodes.len();
                nodes.extend((0..(*each as usize).min(left)).map(|_| node));
                if nodes.len() == size as usize {
                    return Ok(nodes);
                }
            }
        }
    }
    Ok(nodes)
}

/// First node, nodes, and ranks on each; there is one, and none is of no ranks.
fn blocks(mapping: &str) -> Option<Vec<(u32, u32, u32)>> {
    let compact: String = mapping.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut rest = compact.strip_prefix("(vector,")?.strip_suffix(')')?;
    let mut blocks = Vec::new();
    loop {
        let (block, behind) = rest.strip_prefix('(')?.split_once(')')?;
        let numbers: Vec<u32> = block.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        match numbers[..] {
            [first, count, each] if count > 0 && each > 0 => blocks.push((first, count, each)),
            _ => return None,
        }
        match behind.strip_prefix(',') {
            Some(behind) => rest = behind,
            None => return behind.is_empty().then_some(blocks),
        }
    }
}

/// The ranks of each node, which are in a row.
pub(super) fn rows(nodes: &[u32]) -> Result<Vec<Range<u32>>, String> {
    let mut rows: Vec<(u32, Range<u32>)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (rank, node) in (0..).zip(nodes) {
        match rows.last_mut() {
            Some((last, ranks)) if last == node => ranks.end = rank + 1,
            _ if seen.insert(node) => rows.push((*node, rank..rank + 1)),
            _ => {
                return Err(format!(
                    "rank {rank} is on a node whose other ranks are not in a row with it, which \
                     this runtime cannot do: have the launcher fill one node after the other \
                     (srun --distribution=block, mpirun --map-by slot, mpiexec -hosts a:2,b:2)"
                ));
            }
        }
    }
    Ok(rows.into_iter().map(|(_, ranks)| ranks).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_repeated() {
        assert_eq!(nodes("(vector,(0,1,4))", 4), Ok(vec![0, 0, 0, 0]));
        assert_eq!(nodes("(vector,(0,2,2))", 4), Ok(vec![0, 0, 1, 1]));
        assert_eq!(nodes("(vector,(0,2,1))", 4), Ok(vec![0, 1, 0, 1]));
        assert_eq!(nodes("(vector, (0,1,3), (1,1,1))", 4), Ok(vec![0, 0, 0, 1]));
        assert_eq!(nodes("(vector,(0,1,4294967295))", 3), Ok(vec![0, 0, 0]));
    }

    #[test]
    fn what_gives_no_node_to_a_rank_is_refused() {
        for wrong in [
            "",
            "unknown",
            "(vector)",
            "(vector,)",
            "(vector,())",
            "(vector,(0,1,0))",
            "(vector,(0,0,1))",
            "(vector,(0,1))",
            "(vector,(0,1,1)",
            "(vector,(0,1,1)(0,1,1))",
            "(vector,(-1,1,1))",
            "(vector,(4294967295,2,1))",
            "(vector,(0,1,4294967296))",
        ] {
            let error = nodes(wrong, 4).unwrap_err();
            assert!(error.contains("PMI_process_mapping"), "{error}");
        }
    }

    #[test]
    fn ranks_of_a_node_are_in_a_row() {
        assert_eq!(rows(&[7, 7, 3, 4, 4]), Ok(vec![0..2, 2..3, 3..5]));
        let error = rows(&[0, 1, 0, 1]).unwrap_err();
        assert!(error.contains("rank 2") && error.contains("--distribution=block"), "{error}");
    }
}

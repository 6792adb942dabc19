//! A page with all rows: figures first, then a table for each benchmark.
use crate::Result;
use crate::machine::Machine;
use crate::plot::{Family, figure};
use crate::record::{Limit, Row};
use crate::table::{by_benchmark, bytes, figure as value, ratio};
use std::fmt::Write;
use std::path::Path;

const STYLE: &str = "\
body{font:14px/1.45 system-ui,sans-serif;max-width:1480px;margin:2em auto;color:#222}
table{border-collapse:collapse;margin:.5em 0 2em}
th,td{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:right}
td{white-space:nowrap}th{vertical-align:bottom}
th:first-child,td:first-child,.word{text-align:left}
.figures{display:flex;flex-wrap:wrap;gap:1em}
.figures svg{width:720px;max-width:100%;height:auto;border:1px solid #ddd}
.noisy,.above{color:#b00020}.within{color:#00703c}small{color:#666}";

const ABOUT: &str = "\
Medians of many batches, and the range of the middle 80&nbsp;% of them. <b>Limit</b>: the same \
work by raw loads, stores, atomics and copies on the same mapping, in turn with it. A ratio is \
ours in times of the other, of rates the other in times of ours: below 1, ours is better. A noisy \
row is not to be trusted.";

/// Writes the page.
pub(crate) fn write(path: &Path, machine: &Machine, rows: &[Row]) -> Result<()> {
    let page = page(machine, rows)?;
    std::fs::write(path, page)
        .map_err(|error| format!("writing {}: {error}", path.display()).into())
}

fn page(machine: &Machine, rows: &[Row]) -> Result<String> {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>rma-bench</title>\
         <style>{STYLE}</style>\n<h1>rma-bench</h1>\n<p>{}</p>\n<p>{ABOUT}</p>\n",
        escaped(&machine.to_string())
    );
    let benchmarks = by_benchmark(rows);
    let link = |name: &str| format!("<a href=\"#{0}\">{0}</a>", escaped(name));
    let links: Vec<String> = benchmarks.iter().map(|(name, _)| link(name)).collect();
    let _ = writeln!(page, "<p>Tables: {}</p>", links.join(" &middot; "));
    page.push_str("<div class=\"figures\">\n");
    for family in Family::all(rows) {
        page.push_str(&figure(&family)?);
    }
    page.push_str("</div>\n");
    for (benchmark, rows) in benchmarks {
        table(&mut page, benchmark, &rows);
    }
    page.push_str("</html>\n");
    Ok(page)
}

fn table(page: &mut String, benchmark: &str, rows: &[&Row]) {
    let mut peers: Vec<&str> = Vec::new();
    for row in rows {
        let lost = row.lost.iter().map(|peer| &peer.name);
        for name in row.peers.iter().map(|peer| &peer.name).chain(lost) {
            if !peers.contains(&name.as_str()) {
                peers.push(name);
            }
        }
    }
    let _ = write!(
        page,
        "<h2 id=\"{0}\">{0}</h2>\n<table><tr><th>row<th>ranks<th>bytes<th>median<th>p10 .. p90\
         <th class=\"word\">limit<th>of limit<th>goal",
        escaped(benchmark)
    );
    for peer in &peers {
        let _ = write!(page, "<th>{0}<th>of {0}", escaped(peer));
    }
    page.push_str("<th></tr>\n");
    for row in rows {
        line(page, row, &peers);
    }
    page.push_str("</table>\n");
}

fn line(page: &mut String, row: &Row, peers: &[&str]) {
    let show = |ns| value(row, ns);
    let _ = write!(
        page,
        "<tr><td>{}<td>{}<td>{}<td>{}<td>{} .. {}",
        escaped(&row.name),
        row.ranks,
        row.bytes.map(bytes).unwrap_or_default(),
        show(row.ours.median),
        show(row.ours.p10),
        show(row.ours.p90)
    );
    let list = |cell: &dyn Fn(&Limit) -> String| {
        row.limits.iter().map(cell).collect::<Vec<_>>().join("<br>")
    };
    let limits = list(&|limit| escaped(&format!("{} {}", limit.name, show(limit.summary.median))));
    let ratios = list(&|limit| format!("{:.2}", limit.ratio));
    let goal = row.goal.map(|goal| format!("&le; {goal}")).unwrap_or_default();
    let class = match (row.goal, row.limits.first()) {
        (Some(goal), Some(limit)) if limit.ratio > goal => "above",
        (Some(_), Some(_)) => "within",
        (Some(_), None) if row.above_budget().is_some() => "above",
        _ => "",
    };
    let _ = write!(
        page,
        "<td class=\"word\">{limits}<td class=\"{class}\">{ratios}<td class=\"{class}\">{goal}"
    );
    for name in peers {
        match row.peers.iter().find(|peer| peer.name == *name) {
            Some(peer) => {
                let class = if peer.ratio > 1.0 { "above" } else { "within" };
                let median = show(peer.summary.median);
                let _ = write!(page, "<td>{median}<td class=\"{class}\">{}", ratio(peer.ratio));
            }
            None => {
                let lost = row.lost.iter().find(|peer| peer.name == *name);
                let why = lost.map(|peer| escaped(&peer.why)).unwrap_or_default();
                let _ = write!(page, "<td class=\"noisy\">{why}<td>");
            }
        }
    }
    let noisy = if row.noisy { "noisy" } else { "" };
    let _ = writeln!(page, "<td class=\"noisy\">{noisy}</tr>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;

    #[test]
    fn every_row_and_peer_is_on_the_page() {
        let machine =
            Machine { cpu: "a <CPU>".into(), cores: 2, kernel: "6".into(), ..Machine::default() };
        let mut row = Row::one("b", "put & flush", 2, Unit::Nanoseconds, 8.0);
        let without = Row { name: "other".into(), noisy: true, ..row.clone() };
        row.peers.push(Limit { name: "Peer".into(), summary: row.ours, ratio: 0.25 });
        let page = page(&machine, &[row, without]).unwrap();
        for part in ["a &lt;CPU&gt;", "put &amp; flush", "of Peer", "0.250", ">noisy<"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}

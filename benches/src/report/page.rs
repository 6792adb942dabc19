//! Pages with tables that are generated: between two markers each, the rest is written by hand.
use super::tables::{Records, Region};

/// The page with its tables made anew.
pub(super) fn with_tables(
    page: &str,
    regions: &[&Region],
    records: &Records,
) -> Result<String, String> {
    let mut text = page.to_owned();
    for region in regions {
        let (begin, end) = markers(region.name);
        let once = |marker: &str| match text.matches(marker).count() {
            1 => text.find(marker).ok_or_else(|| format!("{marker} is gone")),
            0 => Err(format!("there is no line {marker}: the table has no place")),
            count => Err(format!("{marker} is there {count} times")),
        };
        let (from, to) = (once(&begin)? + begin.len(), once(&end)?);
        if from > to {
            return Err(format!("{end} stands before {begin}"));
        }
        let table = (region.make)(records);
        text.replace_range(from..to, &format!("\n{table}"));
    }
    Ok(text)
}

/// Where a table begins and ends: lines that are not shown.
fn markers(name: &str) -> (String, String) {
    let about = "written by `rma-bench report` from benches/records";
    (format!("<!-- {name}: {about} -->"), format!("<!-- end of {name} -->"))
}

/// The first line in which two texts differ, by its number, and as it is in both.
pub(super) fn difference(is: &str, should: &str) -> Option<String> {
    let (mut is, mut should) = (is.lines(), should.lines());
    for number in 1.. {
        let (is, should) = (is.next(), should.next());
        if is != should {
            let shown = |line: Option<&str>| line.unwrap_or("the end").to_owned();
            return Some(format!("line {number} is\n{}\nand not\n{}", shown(is), shown(should)));
        }
        if is.is_none() {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{record, row};
    use super::*;

    const REGION: Region =
        Region { page: "p", name: "t", make: |all| format!("{}\n", all.machines.len()) };

    #[test]
    fn what_is_between_the_markers_is_made_anew() {
        let machines = vec![record("m", &[row("n", 1.0, None)])];
        let records = Records { machines, crates: Vec::new(), storage: Vec::new() };
        let (begin, end) = markers("t");
        let made = |page: &str| with_tables(page, &[&REGION], &records);
        let page = format!("a\n{begin}\nold\nmore\n{end}\nb\n");
        let new = made(&page).unwrap();
        assert_eq!(new, format!("a\n{begin}\n1\n{end}\nb\n"));
        assert_eq!(made(&new).unwrap(), new, "once more changes nothing");
        assert!(made("a\n").unwrap_err().contains("no line <!-- t:"));
        assert!(made(&format!("{end}{begin}")).unwrap_err().contains("stands before"));
        assert!(made(&format!("{page}{page}")).unwrap_err().contains("2 times"));
        assert!(made(&page.replace(&end, "")).unwrap_err().contains("end of t"));
    }

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(difference("a\nb", "a\nb\n"), None);
        assert_eq!(difference("a\nb", "a\nc").unwrap(), "line 2 is\nb\nand not\nc");
        assert!(difference("a", "a\nc").unwrap().contains("is\nthe end\n"));
    }
}

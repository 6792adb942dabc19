//! The texts of /proc and of control groups.

use super::*;

const V2_MOUNTS: &str = "\
22 28 0:21 / /proc rw,nosuid - proc proc rw
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
";
const V1_MOUNTS: &str = "\
31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/abc /sys/fs/my\\040memory rw shared:9 - cgroup cgroup rw,memory
";

fn paths(texts: &[&str]) -> Vec<PathBuf> {
    texts.iter().map(PathBuf::from).collect()
}

#[test]
fn meminfo() {
    let text = "MemTotal:       24000 kB\nMemAvailable:    123 kB\nBuffers: 1 kB\n";
    let available = |text| meminfo_bytes(text, "MemAvailable:");
    assert_eq!(available(text), Some(123 * 1024));
    for bad in
        ["", "MemTotal: 5 kB", "MemAvailable: x kB", "MemAvailable: 5", "MemAvailable: -1 kB"]
    {
        assert_eq!(available(bad), None, "{bad:?}");
    }
    assert_eq!(available("MemAvailable: 18446744073709551615 kB"), None);
}

/// Only a system that promises no more than it has limits what is reserved.
#[test]
fn promises_of_the_system() {
    let text = "CommitLimit:      300 kB\nCommitted_AS:     100 kB\n";
    assert_eq!(commit_left("2\n", text), Some(200 << 10));
    ["0\n", "1\n", ""].iter().for_each(|mode| assert_eq!(commit_left(mode, text), None));
    let over = "CommitLimit: 1 kB\nCommitted_AS: 2 kB\n";
    assert_eq!(commit_left("2\n", over), Some(0));
    assert_eq!(commit_left("2\n", "CommitLimit: 1 kB\n"), None);
}

#[test]
fn numbers() {
    assert_eq!(statm_size("812 71 33 5 0 60 0\n"), Some(812));
    assert_eq!(statm_size(""), None);
    assert_eq!(limit_value("max\n"), None);
    assert_eq!(limit_value("1048576\n"), Some(1 << 20));
    assert_eq!(limit_value("9223372036854771712\n"), None, "version 1 without a limit");
    assert_eq!(limit_value("4611686018427387904\n"), None);
    assert_eq!(limit_value("4611686018427387903\n"), Some((1 << 62) - 1));
    let stat = "anon 5\ninactive_file 7\nactive_file 8\ntotal_inactive_file 70\n";
    assert_eq!(stat_field(stat, "", "inactive_file"), Some(7));
    assert_eq!(stat_field(stat, "", "active_file"), Some(8));
    assert_eq!(stat_field(stat, "total_", "inactive_file"), Some(70));
    assert_eq!(stat_field(stat, "total_", "active_file"), None);
}

#[test]
fn folders_of_version_2() {
    assert_eq!(
        group_folders("0::/user.slice/job\n", V2_MOUNTS, Version::Two),
        paths(&["/sys/fs/cgroup/user.slice/job", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"])
    );
    assert_eq!(group_path("5::/a\n0:cpu:/b\n0::/c\n", Version::Two), Some("/c"));
    assert_eq!(
        group_folders("0::/\n", V2_MOUNTS, Version::Two),
        paths(&["/sys/fs/cgroup"]),
        "in a namespace"
    );
    assert_eq!(
        group_folders("0::/../../etc\n", V2_MOUNTS, Version::Two),
        paths(&["/sys/fs/cgroup"]),
        "outside of the namespace"
    );
}

#[test]
fn folders_of_version_1() {
    let cgroup = "5:cpu,cpuacct:/x\n4:memory:/docker/abc/inner\n0::/\n";
    assert_eq!(
        group_folders(cgroup, V1_MOUNTS, Version::One),
        paths(&["/sys/fs/my memory/inner", "/sys/fs/my memory"])
    );
    assert_eq!(
        group_folders("4:memory:/elsewhere\n", V1_MOUNTS, Version::One),
        paths(&["/sys/fs/my memory"])
    );
}

#[test]
fn texts_without_groups() {
    for (cgroup, mounts) in [("", ""), ("0::/a", ""), ("", V2_MOUNTS), ("::", "- - -"), ("0:", "a")]
    {
        assert_eq!(group_folders(cgroup, mounts, Version::Two), paths(&[]));
        assert_eq!(group_folders(cgroup, mounts, Version::One), paths(&[]));
    }
}

#[test]
fn the_smallest_limit_is_named() {
    let available = Available::UNLIMITED.min(Some(10), GROUP).min(None, FILE_SIZE);
    assert_eq!(available.min(Some(10), FREE_MEMORY), Available { bytes: 10, limit: GROUP });
    assert_eq!(available.min(Some(9), FILE_SIZE), Available { bytes: 9, limit: FILE_SIZE });
}

#[test]
fn a_group_gives_its_page_cache_back() {
    let folder = std::env::temp_dir().join(format!("rma-shm-group-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let group = Group {
        limit: folder.join("limit"),
        used: folder.join("used"),
        stat: folder.join("stat"),
        prefix: "",
    };
    fs::write(&group.limit, "1000\n").unwrap();
    fs::write(&group.used, "900\n").unwrap();
    assert_eq!(group.available(), Some(100));
    fs::write(&group.stat, "inactive_file 200\nactive_file 50\n").unwrap();
    assert_eq!(group.available(), Some(350));
    fs::write(&group.used, "2000\n").unwrap();
    assert_eq!(group.available(), Some(0));
    fs::write(&group.limit, "max\n").unwrap();
    assert_eq!(group.available(), None);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn this_machine_has_some() {
    let available = MemoryLimits::discover().available();
    assert!(available.bytes > 0 && available.bytes < 1 << 50, "{available:?}");
}

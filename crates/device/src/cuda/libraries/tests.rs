//! Tests of the library search on trees of empty files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use testkit::Folder;

use super::{CudaLibrary, LibraryRoots, LibrarySearch};

/// Creates a temporary folder with empty files at the relative `paths`.
fn tree(paths: &[&str]) -> Folder {
    let root = Folder::new();
    for path in paths {
        root.write(path, "");
    }
    root
}

/// Lists the candidates below `root` as relative paths. The names for the linker stay unchanged.
fn candidates(root: &Path, roots: &LibraryRoots, library: CudaLibrary) -> Vec<String> {
    let found = LibrarySearch::new(roots).candidates(library);
    let shown = |path: PathBuf| path.strip_prefix(root).unwrap_or(&path).display().to_string();
    found.into_iter().map(shown).collect()
}

#[test]
fn named_folders_come_first_then_the_linker_then_python_packages_then_toolkits() {
    let root = tree(&[
        "named/libnvrtc.so.12",
        "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.alt.so.13",
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
        "path/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "local/cuda-12.4/lib64/libnvrtc.so.12.4.127",
        "local/cuda-13.0/lib64/libnvrtc.so.13.0.88",
        "empty/lib/python3.12/site-packages/torch/lib/libtorch.so",
    ]);
    let roots = LibraryRoots {
        named: vec![root.path("named"), root.path("absent")],
        environments: vec![root.path("empty"), root.path("venv"), root.path("venv")],
        packages: vec![root.path("path")],
        programs: Vec::new(),
        installations: vec![root.path("usr")],
        toolkits: vec![root.path("local")],
    };
    let search = LibrarySearch::new(&roots);
    assert!(search.missing_folders().eq([root.path("absent")]));
    assert_eq!(
        candidates(root.root(), &roots, CudaLibrary::Nvrtc),
        [
            "named/libnvrtc.so.12",
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc.so",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "path/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "local/cuda-13.0/lib64/libnvrtc.so.13.0.88",
            "local/cuda-12.4/lib64/libnvrtc.so.12.4.127",
        ]
    );
}

#[test]
fn versions_are_compared_as_numbers_and_each_file_is_tried_once() {
    let files = ["libnccl.so.9", "libnccl.so.12.1", "libnccl.so.2.27", "libnccl.so.old"];
    let root = tree(&files.map(|file| ["named", file].join("/")).each_ref().map(String::as_str));
    symlink("libnccl.so.9", root.path("named/libnccl.so")).unwrap();
    let roots = LibraryRoots { named: vec![root.path("named")], ..LibraryRoots::default() };
    let expected = [
        "named/libnccl.so.12.1",
        "named/libnccl.so.9",
        "named/libnccl.so.2.27",
        "libnccl.so.2",
        "libnccl.so",
    ];
    assert_eq!(candidates(root.root(), &roots, CudaLibrary::Nccl), expected);
}

#[test]
fn packages_are_found_beside_the_python_in_path() {
    let root = tree(&[
        "opt/python/bin/python3.12",
        "opt/python/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "opt/torch/.venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
        "opt/torch/.venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "bin/other",
    ]);
    fs::create_dir_all(root.path("opt/torch/.venv/bin")).unwrap();
    let chain = [
        ("bin/python3", "../opt/torch/.venv/bin/python3"),
        ("opt/torch/.venv/bin/python3", "python3.12"),
        ("opt/torch/.venv/bin/python3.12", "../../../python/bin/python3.12"),
    ];
    for (link, target) in chain {
        symlink(target, root.path(link)).unwrap();
    }
    let roots = LibraryRoots {
        programs: vec![root.path("none"), root.path("bin")],
        ..LibraryRoots::default()
    };
    let root = fs::canonicalize(root.root()).unwrap();
    let expected = [
        "libnccl.so.2",
        "libnccl.so",
        "opt/torch/.venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "opt/python/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
    ];
    assert_eq!(candidates(&root, &roots, CudaLibrary::Nccl), expected);
}

#[test]
fn variables_name_lists_of_folders() {
    let roots = LibraryRoots::from_variables(|name| match name {
        "ROWMILL_CUDA_LIBRARIES" => Some("/a:/b".into()),
        "VIRTUAL_ENV" => Some("/venv".into()),
        "CONDA_PREFIX" => Some("".into()),
        _ => None,
    });
    assert_eq!(roots.named, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(roots.environments, [Path::new("/venv")]);
    assert_eq!(roots.installations, [Path::new("/usr"), Path::new("/usr/local")]);
}

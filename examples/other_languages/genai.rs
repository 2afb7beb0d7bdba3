//! Continues token ids with a package, over the C interface of onnxruntime-genai and without any crate.
//!
//!     LIBRARIES=$(python -c "import onnxruntime_genai as g; print(g.__path__[0])")
//!     rustc -O genai.rs -L native=$LIBRARIES
//!     LD_LIBRARY_PATH=$LIBRARIES:FOLDER_OF_ONNXRUNTIME ./genai FOLDER NEW_TOKENS ID [ID]...
//!
//! onnxruntime-genai loads libonnxruntime.so while it runs. In onnxruntime's wheel the file has the version in its name: link to it.

use std::ffi::{c_char, c_void, CStr, CString};

#[link(name = "onnxruntime-genai")]
extern "C" {
    fn OgaCreateModel(folder: *const c_char, model: *mut *mut c_void) -> *mut c_void;
    fn OgaCreateGeneratorParams(model: *const c_void, params: *mut *mut c_void) -> *mut c_void;
    fn OgaGeneratorParamsSetSearchNumber(params: *mut c_void, name: *const c_char, value: f64) -> *mut c_void;
    fn OgaCreateGenerator(model: *const c_void, params: *const c_void, generator: *mut *mut c_void) -> *mut c_void;
    fn OgaGenerator_AppendTokens(generator: *mut c_void, ids: *const i32, count: usize) -> *mut c_void;
    fn OgaGenerator_GenerateNextToken(generator: *mut c_void) -> *mut c_void;
    fn OgaGenerator_IsDone(generator: *const c_void) -> bool;
    fn OgaGenerator_GetSequenceCount(generator: *const c_void, index: usize) -> usize;
    fn OgaGenerator_GetSequenceData(generator: *const c_void, index: usize) -> *const i32;
    fn OgaResultGetError(result: *const c_void) -> *const c_char;
}

/// Ends the program with the library's message if a call failed.
fn check(result: *mut c_void) {
    if !result.is_null() {
        panic!("{}", unsafe { CStr::from_ptr(OgaResultGetError(result)) }.to_string_lossy());
    }
}

fn main() {
    let folder = CString::new(std::env::args().nth(1).expect("a package folder")).unwrap();
    let prompt: Vec<i32> = std::env::args().skip(3).map(|id| id.parse().unwrap()).collect();
    let length = prompt.len() + std::env::args().nth(2).unwrap().parse::<usize>().unwrap();
    let (mut model, mut params, mut generator) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    let max_length = CString::new("max_length").unwrap();
    unsafe {
        check(OgaCreateModel(folder.as_ptr(), &mut model));
        check(OgaCreateGeneratorParams(model, &mut params));
        check(OgaGeneratorParamsSetSearchNumber(params, max_length.as_ptr(), length as f64));
        check(OgaCreateGenerator(model, params, &mut generator));
        check(OgaGenerator_AppendTokens(generator, prompt.as_ptr(), prompt.len()));
        while !OgaGenerator_IsDone(generator) {
            check(OgaGenerator_GenerateNextToken(generator));
        }
        let count = OgaGenerator_GetSequenceCount(generator, 0);
        let ids = std::slice::from_raw_parts(OgaGenerator_GetSequenceData(generator, 0), count);
        println!("{}", ids[prompt.len()..].iter().map(|id| id.to_string()).collect::<Vec<_>>().join(","));
    }
}

// An operator of ONNX Runtime that takes the place of MatMulNBits at accuracy level 4: `MatMulNBits` of the domain `onnx_textgen`.
//
// Inputs: numbers [..., inner] (float32); codes [columns, blocks, block * bits / 8] (uint8); scales [columns, blocks] (float32,
// float16, int8 or uint8); and, or not, zero points [columns, blocks * bits / 8, rounded up] (uint8), and factors [columns] of the
// scales (float32). All but the first are constants.
// Attributes: K (inner), N (columns), bits (4 or 8), block_size; and, or not, `weights`, a name of the constants: nodes of all
// sessions of the process that have the same name share the repacked weights. Output: [..., columns] (float32).

#include <cpuid.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "matrix.h"
#include "onnxruntime_abi.h"

namespace textgen {
namespace {

const char* const kDomain = "onnx_textgen";
const char* const kOperator = "MatMulNBits";
const char* const kVariable = "ONNX_TEXTGEN_KERNELS";
constexpr int64_t kProductsOfTask = 1 << 18;  // a few microseconds: less would not repay that a thread takes a task
constexpr int64_t kRowsOfTask = 16;           // rows that a task rounds
constexpr int64_t kBytesOfThread = 1 << 22;   // of a matrix that is repacked
constexpr int64_t kMostSize = INT32_MAX;      // of K and N, so that their product is no overflow

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0;
}

// Each instruction set that the file may use, as build.py says.
bool has_avx512_vnni() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// The fastest form that the processor has, or the one that the variable names; null if there is none.
const Form* chosen_form() {
    static const Form* const found = [] {
        const char* wanted = std::getenv(kVariable);
        const std::pair<const Form*, bool (*)()> forms[] = {
            {&kAvx512Vnni, has_avx512_vnni}, {&kAvxVnni, has_avx_vnni}, {&kAvx2, has_avx2}};
        for (const auto& [form, is_supported] : forms)
            if (is_supported() && (wanted == nullptr || *wanted == 0 || std::strcmp(wanted, form->name) == 0)) return form;
        return static_cast<const Form*>(nullptr);
    }();
    return found;
}

template <class T>
struct Aligned {
    struct Free {
        void operator()(T* memory) const { std::free(memory); }
    };
    std::unique_ptr<T, Free> memory;

    void resize(int64_t count) {
        const size_t size = (count * sizeof(T) + 63) / 64 * 64;
        memory.reset(static_cast<T*>(std::aligned_alloc(64, std::max<size_t>(size, 64))));
        if (memory == nullptr) throw std::bad_alloc();
    }
    T* get() const { return memory.get(); }
};

void check(const ort::Api& api, ort::Status* status) {
    if (status == nullptr) return;
    api.release(status);
    throw std::runtime_error("ONNX Runtime refused a call");
}

struct Tensor {
    const void* data = nullptr;
    ort::ElementType type = ort::kAnyType;
    std::vector<int64_t> sizes;
    int64_t count = 1;

    Tensor(const ort::Api& api, const ort::Value* value) {
        void* found = nullptr;
        check(api, api.data(value, &found));
        data = found;
        ort::Shape* shape = nullptr;
        check(api, api.shape(value, &shape));
        size_t dimensions = 0, elements = 0;
        ort::Status* status = api.dimension_count(shape, &dimensions);
        sizes.resize(dimensions);
        if (status == nullptr) status = api.dimensions(shape, sizes.data(), dimensions);
        if (status == nullptr) status = api.element_type(shape, &type);
        if (status == nullptr) status = api.element_count(shape, &elements);
        api.release(shape);
        check(api, status);
        count = static_cast<int64_t>(elements);
    }
};

float from_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 0) {
        const float value = static_cast<float>(fraction) * 0x1p-24f;
        return sign == 0 ? value : -value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

float number_at(const Tensor& tensor, int64_t index) {
    switch (tensor.type) {
        case ort::kFloat: return static_cast<const float*>(tensor.data)[index];
        case ort::kFloat16: return from_half(static_cast<const uint16_t*>(tensor.data)[index]);
        case ort::kInt8: return static_cast<const int8_t*>(tensor.data)[index];
        default: return static_cast<const uint8_t*>(tensor.data)[index];
    }
}

// Gives pages of a file back that a repacked tensor was read from; the file brings them again if another operator reads them.
// Nothing happens to memory that no file has: bit 61 of a page's entry says that one does.
void give_back(const Tensor& tensor) {
#ifdef __linux__
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(tensor.data);
    const int64_t size_of_number = tensor.type == ort::kFloat ? 4 : tensor.type == ort::kFloat16 ? 2 : 1;
    const uintptr_t first = (begin + page - 1) / page, last = (begin + tensor.count * size_of_number) / page;
    if (last <= first) return;
    std::vector<uint64_t> entries(last - first);
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const auto size = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
    const bool is_read = pread(file, entries.data(), size, static_cast<off_t>(first * sizeof(uint64_t))) == size;
    close(file);
    const auto is_file = [](uint64_t entry) { return (entry >> 61 & 1) != 0; };
    const auto is_absent = [](uint64_t entry) { return entry >> 62 == 0; };  // the system took it back
    const auto may_go = [&](uint64_t entry) { return is_file(entry) || is_absent(entry); };
    const auto files = std::count_if(entries.begin(), entries.end(), is_file);
    if (is_read && 2 * files > static_cast<int64_t>(entries.size()) && std::all_of(entries.begin(), entries.end(), may_go))
        madvise(reinterpret_cast<void*>(first * page), (last - first) * page, MADV_DONTNEED);
#endif
}

// Calls `task`, which must not throw, for 0 to `count` - 1 on as many threads as `bytes` of work repay.
template <class Task>
void on_threads(int64_t count, int64_t bytes, const Task& task) {
    const int64_t most = std::min<int64_t>(std::thread::hardware_concurrency(), 8);
    const int64_t used = std::max<int64_t>(1, std::min({most, bytes / kBytesOfThread, count}));
    const auto part = [&](int64_t thread) {
        for (int64_t index = count * thread / used; index < count * (thread + 1) / used; index++) task(index);
    };
    std::vector<std::thread> others;
    others.reserve(used);
    for (int64_t thread = 1; thread < used; thread++) {
        try {
            others.emplace_back(part, thread);
        } catch (...) {  // a limit of the system's: this thread does it
            part(thread);
        }
    }
    part(0);
    for (auto& other : others) other.join();
}

// Repacked weights.
struct Weights {
    Matrix matrix;
    Aligned<uint32_t> codes;
    Aligned<float> scales;
    Aligned<uint8_t> zero_points;

    void pack_codes(const Tensor& tensor) {
        const int64_t words = matrix.words(), width = matrix.width, columns = matrix.columns;
        codes.resize(matrix.panels() * words * width);
        const auto* source = static_cast<const uint8_t*>(tensor.data);
        on_threads(matrix.panels(), tensor.count, [&](int64_t panel) {
            constexpr int64_t kWords = 16;  // a line of the cache
            uint32_t* target = codes.get() + panel * words * width;
            for (int64_t begin = 0; begin < words; begin += kWords)
                for (int64_t column = 0; column < width; column++) {
                    const int64_t from = panel * width + column;
                    for (int64_t word = begin; word < std::min(words, begin + kWords); word++) {
                        uint32_t found = 0;
                        if (from < columns) std::memcpy(&found, source + (from * words + word) * 4, sizeof found);
                        target[word * width + column] = found;
                    }
                }
        });
        matrix.codes = codes.get();
    }

    // `factors`: null, or one for each column.
    void pack_scales(const Tensor& tensor, const float* factors) {
        pack(scales, [&](int64_t column, int64_t index) {
            return factors == nullptr ? number_at(tensor, index) : number_at(tensor, index) * factors[column];
        });
        matrix.scales = scales.get();
    }

    void pack_zero_points(const Tensor& tensor) {
        const int64_t blocks = matrix.blocks(), bytes = bytes_of_points();
        const auto* source = static_cast<const uint8_t*>(tensor.data);
        pack(zero_points, [&](int64_t column, int64_t index) -> uint8_t {
            const int64_t block = index - column * blocks;
            return matrix.bits == 8 ? source[index] : source[column * bytes + block / 2] >> (block % 2 * 4) & 15;
        });
        matrix.zero_points = zero_points.get();
    }

    int64_t bytes_of_points() const { return (matrix.blocks() * matrix.bits + 7) / 8; }

  private:
    // `number` for each column and block, in the order of panels.
    template <class T, class Number>
    void pack(Aligned<T>& packed, const Number& number) {
        const int64_t blocks = matrix.blocks(), width = matrix.width;
        packed.resize(matrix.panels() * blocks * width);
        on_threads(matrix.panels(), matrix.columns * blocks * 4, [&](int64_t panel) {
            for (int64_t column = panel * width; column < (panel + 1) * width; column++)
                for (int64_t block = 0; block < blocks; block++)
                    packed.get()[(panel * blocks + block) * width + column % width] =
                        column < matrix.columns ? number(column, column * blocks + block) : T{0};
        });
    }
};

// The weights of this process by name, as long as a kernel has them.
class Shared {
  public:
    template <class Make>
    static std::shared_ptr<const Weights> get(const std::string& name, const Make& make) {
        if (name.empty()) return make();
        {
            const std::lock_guard<std::mutex> guard(mutex());
            const auto known = all().find(name);
            if (known != all().end())
                if (auto found = known->second.lock()) return found;
        }
        auto made = make();  // without the lock: it takes long, and a process that forks meanwhile could not open a model
        const std::lock_guard<std::mutex> guard(mutex());
        for (auto each = all().begin(); each != all().end();) each = each->second.expired() ? all().erase(each) : std::next(each);
        auto& known = all()[name];
        if (auto found = known.lock()) return found;
        known = made;
        return made;
    }

  private:
    static std::mutex& mutex() {
        static std::mutex found;
        return found;
    }
    static std::map<std::string, std::weak_ptr<const Weights>>& all() {
        static std::map<std::string, std::weak_ptr<const Weights>> found;
        return found;
    }
};

class Kernel {
  public:
    Kernel(const ort::Api& api, const ort::KernelInfo* info)
        : api_(api), form_(*chosen_form()), weights_(Shared::get(name_of(info), [&] { return packed(info); })), matrix_(weights_->matrix) {}

    void compute(ort::KernelContext* context) const {
        const ort::Value* value = nullptr;
        check(api_, api_.input(context, 0, &value));
        const Tensor numbers(api_, value);
        if (numbers.sizes.empty() || numbers.sizes.back() != matrix_.inner) throw std::invalid_argument("the last size is not K");
        std::vector<int64_t> sizes = numbers.sizes;
        sizes.back() = matrix_.columns;
        ort::Value* output = nullptr;
        check(api_, api_.output(context, 0, sizes.data(), sizes.size(), &output));
        void* out = nullptr;
        check(api_, api_.data(output, &out));
        if (numbers.count == 0) return;
        Run run{*this, static_cast<const float*>(numbers.data), static_cast<float*>(out), {}, 1};
        run.rows.count = numbers.count / matrix_.inner;
        rounded(run.rows);
        if (run.rows.count <= kRowsOfTask) {
            round_rows(&run, 0);
        } else {
            check(api_, api_.parallel_for(context, round_rows, (run.rows.count + kRowsOfTask - 1) / kRowsOfTask, &run));
        }
        const int64_t products = matrix_.inner * matrix_.width * run.rows.count;
        run.panels_of_task = std::max<int64_t>(1, kProductsOfTask / products);
        const int64_t tasks = (matrix_.panels() + run.panels_of_task - 1) / run.panels_of_task;
        if (tasks == 1) {
            multiply_panels(&run, 0);
        } else {
            check(api_, api_.parallel_for(context, multiply_panels, tasks, &run));
        }
    }

  private:
    struct Run {
        const Kernel& kernel;
        const float* numbers;
        float* out;
        Rows rows;
        int64_t panels_of_task;
    };

    static void round_rows(void* data, size_t task) {
        const Run& run = *static_cast<Run*>(data);
        const Matrix& matrix = run.kernel.matrix_;
        const int64_t begin = static_cast<int64_t>(task) * kRowsOfTask, end = std::min(run.rows.count, begin + kRowsOfTask);
        for (int64_t row = begin; row < end; row++)
            run.kernel.form_.round(matrix, run.numbers + row * matrix.inner, row, run.rows);
    }

    static void multiply_panels(void* data, size_t task) {
        const Run& run = *static_cast<Run*>(data);
        const Matrix& matrix = run.kernel.matrix_;
        const int64_t begin = static_cast<int64_t>(task) * run.panels_of_task;
        for (int64_t panel = begin; panel < std::min(matrix.panels(), begin + run.panels_of_task); panel++)
            run.kernel.form_.multiply(matrix, run.rows, panel, run.out);
    }

    // Memory for rounded rows: that of the thread, kept from run to run.
    void rounded(Rows& rows) const {
        static thread_local std::vector<int8_t> codes;
        static thread_local std::vector<float> scales, sums;
        static thread_local std::vector<int32_t> starts;
        const auto size = static_cast<size_t>(rows.count * matrix_.inner), blocks = static_cast<size_t>(rows.count * matrix_.blocks());
        if (codes.size() < size) codes.resize(size);
        if (scales.size() < blocks) scales.resize(blocks);
        if (sums.size() < blocks) sums.resize(blocks);
        if (starts.size() < blocks) starts.resize(blocks);
        rows.codes = codes.data(), rows.scales = scales.data(), rows.sums = sums.data(), rows.starts = starts.data();
    }

    std::shared_ptr<const Weights> packed(const ort::KernelInfo* info) const {
        auto weights = std::make_shared<Weights>();
        Matrix& matrix = weights->matrix;
        matrix.inner = attribute(info, "K");
        matrix.columns = attribute(info, "N");
        matrix.bits = static_cast<int>(attribute(info, "bits"));
        matrix.block = attribute(info, "block_size");
        matrix.width = form_.width;
        const bool has_block = matrix.block >= 16 && matrix.block <= 256 && (matrix.block & (matrix.block - 1)) == 0;
        if ((matrix.bits != 4 && matrix.bits != 8) || !has_block || matrix.inner < 1 || matrix.columns < 1 ||
            matrix.inner > kMostSize || matrix.columns > kMostSize || matrix.inner % matrix.block != 0)
            throw std::invalid_argument("K, N, bits and block_size do not fit");
        const Tensor codes = constant(info, 1, matrix.columns * matrix.words() * 4);
        const Tensor scales = constant(info, 2, matrix.columns * matrix.blocks());
        if (scales.type != ort::kFloat && scales.type != ort::kFloat16 && scales.type != ort::kInt8 && scales.type != ort::kUint8)
            throw std::invalid_argument("scales must be float32, float16, int8 or uint8");
        size_t inputs = 0;
        check(api_, api_.input_count(info, &inputs));
        weights->pack_codes(codes);
        weights->pack_scales(scales, inputs > 4 ? static_cast<const float*>(constant(info, 4, matrix.columns).data) : nullptr);
        if (inputs > 3 && value_of(info, 3) != nullptr)
            weights->pack_zero_points(constant(info, 3, matrix.columns * weights->bytes_of_points()));
        give_back(codes);
        give_back(scales);
        return weights;
    }

    int64_t attribute(const ort::KernelInfo* info, const char* name) const {
        int64_t found = 0;
        check(api_, api_.attribute(info, name, &found));
        return found;
    }

    // The attribute `weights`, with all else that the repacked weights depend on; empty if there is none.
    std::string name_of(const ort::KernelInfo* info) const {
        size_t size = 0;
        ort::Status* status = api_.attribute(info, "weights", nullptr, &size);
        std::string found(size, 0);
        if (status == nullptr) status = api_.attribute(info, "weights", found.data(), &size);
        if (status != nullptr) {
            api_.release(status);
            return "";
        }
        for (const char* name : {"K", "N", "bits", "block_size"}) found += " " + std::to_string(attribute(info, name));
        return found;
    }

    const ort::Value* value_of(const ort::KernelInfo* info, size_t index) const {
        int is_constant = 0;
        const ort::Value* value = nullptr;
        check(api_, api_.constant_input(info, index, &is_constant, &value));
        return is_constant == 0 ? nullptr : value;
    }

    Tensor constant(const ort::KernelInfo* info, size_t index, int64_t count) const {
        const ort::Value* value = value_of(info, index);
        if (value == nullptr) throw std::invalid_argument("all inputs but the first must be constants");
        const Tensor found(api_, value);
        if (found.count != count) throw std::invalid_argument("a constant does not fit K, N, bits and block_size");
        const auto wanted = index == 4 ? ort::kFloat : index == 2 ? found.type : ort::kUint8;
        if (found.type != wanted) throw std::invalid_argument("codes and zero points must be uint8, and factors float32");
        return found;
    }

    const ort::Api& api_;
    const Form& form_;
    const std::shared_ptr<const Weights> weights_;
    const Matrix& matrix_;
};

const ort::Api* api = nullptr;  // the table of ONNX Runtime in this process

template <class Body>
ort::Status* status_of(const Body& body) noexcept {
    try {
        body();
        return nullptr;
    } catch (const std::exception& error) {
        return api->create_status(ort::kFail, (std::string(kDomain) + "." + kOperator + ": " + error.what()).c_str());
    }
}

ort::Status* create(const ort::CustomOp*, const ort::Api*, const ort::KernelInfo* info, void** kernel) {
    return status_of([&] { *kernel = new Kernel(*api, info); });
}

ort::Status* compute(void* kernel, ort::KernelContext* context) {
    return status_of([&] { static_cast<const Kernel*>(kernel)->compute(context); });
}

ort::CustomOp make_operator() {
    using ort::CustomOp;
    CustomOp op{};
    op.version = ort::kVersion;
    op.name = [](const CustomOp*) { return kOperator; };
    op.provider = [](const CustomOp*) -> const char* { return nullptr; };
    op.input_type = [](const CustomOp*, size_t index) {
        return index % 4 == 0 ? ort::kFloat : index == 2 ? ort::kAnyType : ort::kUint8;
    };
    op.input_count = [](const CustomOp*) -> size_t { return 5; };
    op.output_type = [](const CustomOp*, size_t) { return ort::kFloat; };
    op.output_count = [](const CustomOp*) -> size_t { return 1; };
    op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    op.input_characteristic = [](const CustomOp*, size_t index) { return index >= 3 ? ort::kOptional : ort::kRequired; };
    op.output_characteristic = [](const CustomOp*, size_t) { return ort::kRequired; };
    op.input_memory = [](const CustomOp*, size_t) { return 0; };
    op.create = create;
    op.compute = compute;
    return op;
}

}  // namespace
}  // namespace textgen

#define TEXTGEN_EXPORT extern "C" __attribute__((visibility("default")))

// The instructions that products are computed with, such as "avx512-vnni"; null if this processor has none that is known here.
TEXTGEN_EXPORT const char* textgen_kernels() {
    const textgen::Form* form = textgen::chosen_form();
    return form == nullptr ? nullptr : form->name;
}

// What ONNX Runtime calls for each SessionOptions that the library is registered with. Domains live as long as the process, since
// ONNX Runtime does not say when the last session that uses one has ended.
TEXTGEN_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
    static const ort::CustomOp op = textgen::make_operator();
    textgen::api = base->get_api(ort::kVersion);
    if (textgen::chosen_form() == nullptr)
        return textgen::api->create_status(ort::kFail, "this processor has none of the instructions that onnx_textgen's kernels use");
    ort::Domain* domain = nullptr;
    ort::Status* status = textgen::api->create_domain(textgen::kDomain, &domain);
    if (status == nullptr) status = textgen::api->add(domain, &op);
    if (status == nullptr) status = textgen::api->add(options, domain);
    return status;
}
